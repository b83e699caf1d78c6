SELECT request_digest, reply FROM requests WHERE key = $1 AND operation = $2 AND actor = $3
