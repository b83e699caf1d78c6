INSERT INTO edges (number, prior, child, reward, discount, visits, in_flight, status, failures, closed_because,
                   child_visits, child_mean, child_proven)
VALUES ($1, $2, NULL, NULL, $3, 0, 0, 'open', 0, NULL, 0, NULL, NULL)
