SELECT e.number, e.prior, e.child, e.reward, e.discount, e.visits, e.in_flight, e.status, e.failures, e.child_mean, e.child_visits, e.child_proven,
       e.closed_because, a.action, a.action_digest, a.name
FROM edges e JOIN actions a ON a.edge = e.number WHERE e.number >= $1 AND e.number <= $2 ORDER BY e.number
