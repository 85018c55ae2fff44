"""Sites know the class proportions of bags of images, and no single label (docs/BAGS.md)."""
