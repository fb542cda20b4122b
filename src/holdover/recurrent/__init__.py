"""The recurrent model: attach a state, read texts window by window, save and load."""
