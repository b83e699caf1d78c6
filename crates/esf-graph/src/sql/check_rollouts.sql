SELECT ordinal, steps, leaf, stage, status, value, cost, ended FROM rollouts WHERE search = $1 ORDER BY ordinal
