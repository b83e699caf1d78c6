SELECT state, batch, step, reason FROM consumptions WHERE consumer = $1 AND sequence = $2
