UPDATE siblings SET status = 'running', trial = $1, trials = trials + 1 WHERE number = $2
