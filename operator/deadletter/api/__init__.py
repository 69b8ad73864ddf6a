"""What users write: the four kinds as pydantic models, and the CRDs made from them."""
