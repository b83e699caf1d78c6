SELECT store_id FROM store
