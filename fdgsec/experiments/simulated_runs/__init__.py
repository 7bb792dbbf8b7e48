"""Simulated runs that answer what an attack asks for."""
