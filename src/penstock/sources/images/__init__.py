"""Images: files, columns of tables, decoding, resizing."""
