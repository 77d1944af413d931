"""Jobs of many tasks: on one device, on all GPUs of a machine, or on a cluster.

A job divides its input into tasks, always in the same way. Workers turn tasks into bytes, which are
appended to a file in the order of the input. A journal beside it says how many tasks are complete,
so that a job that ended in any way, even by SIGKILL, continues where it stopped.

- ``job``: `run`, the order of results, and the continuation of a job
- ``journal``: files beside the output of an unfinished job
- ``workers``: this process, or one process per GPU
- ``cluster``: workers of a Dask cluster
- ``tables``: results as Parquet or HDF5
"""
