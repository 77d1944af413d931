"""Parts of structure prediction that Boltz, OpenFold3 and Protenix share."""
