UPDATE searches
SET status = $1, stopped = $2, selected = $3, accepted = $4, void = $5, cost = $6, positions = $7, expanded = $8,
    edges = $9, best = $10, stats_rev = stats_rev + 1
WHERE number = $11
