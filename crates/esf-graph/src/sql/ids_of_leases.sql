SELECT lease_id FROM leases WHERE lease_id >= $1 AND lease_id <= $2 ORDER BY lease_id LIMIT 21
