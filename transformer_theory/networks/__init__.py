"""Networks in which no theory has a part, and how all networks read their input: :mod:`.vit`, :mod:`.decoder` and
:mod:`.embedding`."""
