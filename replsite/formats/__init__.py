"""How the admin writes moments: as the live page does, to the second (Django's ``FORMAT_MODULE_PATH``)."""
