"""Statistics that several attack families share."""
