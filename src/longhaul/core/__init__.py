"""What flows between stages: records, units, clocks, schedules, errors. Imports no other stage."""
