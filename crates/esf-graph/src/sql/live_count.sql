SELECT count(*) FROM attempts WHERE status IN ('active', 'quiescing')
