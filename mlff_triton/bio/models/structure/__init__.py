"""Parts of structure prediction that Boltz, OpenFold3 and Protenix share.

- ``block``, ``block_update``, ``updates``: blocks of trunks and MSA modules
- ``sampling``, ``pair_score``, ``score_network``, ``diffusion``: networks that remove noise
- ``biases``, ``window_conditions``: terms that all steps of a sampler share
- ``layers``, ``maps``: weights of layers with the names of OpenFold
- ``autocast``, ``mask_check``: contexts and inputs of adapters
- ``packed``, ``remembered``: tensors side by side in memory, and values known for tensors
"""
