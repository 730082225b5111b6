"""Images with complementary labels, as training sees them: `weak.WeakData`, augmentations, pictures from a folder.

No module here, and none of the rooms that train, has a place for a true label.
"""
