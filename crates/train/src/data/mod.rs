//! Where training text comes from: sources, tokenizers, packing, shuffling, loading ahead.
