"""What every op is made of: calls, shapes, tolerances, requirements. Knows no kernel."""
