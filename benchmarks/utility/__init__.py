"""What private training is worth: accuracies beside those of the papers and of Opacus. See docs/utility.md."""
