"""Ranks and who does what: degrees, groups, placement of layers, schedules."""
