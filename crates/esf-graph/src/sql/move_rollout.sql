UPDATE rollouts SET steps = $1, leaf = $2, stage = $3, wanted = $4 WHERE number = $5 AND status = 'selected'
