"""Tokens of one answer, as the provider counted them or as we estimated them."""

from pydantic import BaseModel, ConfigDict, Field


class Usage(BaseModel):
    """Tokens of one or more provider calls."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    input: int = Field(ge=0)
    output: int = Field(ge=0)
    cached: int = Field(default=0, ge=0, description="Part of input that the provider had cached.")
    cost_usd: float | None = Field(default=None, description="None where the price is not known.")
    estimated: bool = Field(default=False, description="The provider sent none; we counted.")
