SELECT e.number, e.prior, e.child, e.reward, e.discount, e.visits, e.in_flight, e.status, e.failures, e.child_mean, e.child_visits, e.child_proven
FROM edges e WHERE e.number >= $1 AND e.number <= $2 ORDER BY e.number
