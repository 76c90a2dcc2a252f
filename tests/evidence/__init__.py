"""What is promised, what keeps it, which tests show it, and what went red when it was taken away: `docs/evidence.md`."""
