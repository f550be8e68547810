"""The site's history: sampling, storage, charts. How long it is kept is no setting (``SPANS`` in ``samples``)."""
