"""What people read about a run: the page `report.html`, made from the logbook only."""
