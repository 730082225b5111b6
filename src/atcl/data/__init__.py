"""Training data: images with complementary labels (`weak.WeakData`), augmentations, readers of pictures.

Nothing in this package, or in the other packages that train, can hold a true label.
"""
