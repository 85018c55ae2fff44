"""Sites know the class proportions of bags of images, and no label (docs/research/bags.md)."""
