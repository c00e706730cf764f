"""Loading models, what a decoder looks like per family, surgery and variants."""
