"""From settings to objects: dataset, split, method, clients, defenses, and one run of them."""
