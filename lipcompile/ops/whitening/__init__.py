"""Features of images that are fixed in public: whitened by constants of synthetic images, of length 1."""
