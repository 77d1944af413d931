"""Systems and models to measure on."""
