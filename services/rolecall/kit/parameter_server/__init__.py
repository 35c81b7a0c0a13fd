"""Weights that live on servers, apart from the trainers that compute with them."""
