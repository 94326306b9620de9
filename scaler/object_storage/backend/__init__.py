"""Large objects in a bucket or shared directory (`folders`). The object storage writes and deletes objects; stores read
chunks, and write objects that no other store has (`run`). Content is authenticated with a key kept elsewhere."""
