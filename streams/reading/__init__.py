"""Reads rows and positions. Writers send ``hints``, the ``looker`` stores positions, and readers apply each before it shows."""
