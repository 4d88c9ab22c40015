def add_commands(_):
    pass
