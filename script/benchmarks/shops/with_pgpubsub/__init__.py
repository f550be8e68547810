"""The shop with django-pgpubsub: a trigger on the business row, and stored notifications."""
