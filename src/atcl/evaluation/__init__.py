"""What a model withstands, against the truth: attacks of record, their cache on the disk, signs of masked gradients."""
