INSERT INTO store (store_id) VALUES ($1)
