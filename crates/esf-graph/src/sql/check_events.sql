SELECT count(*), coalesce(max(seq), 0) FROM events
