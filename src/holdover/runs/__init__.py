"""What every command shares: settings, processes, device, provenance of a record."""
