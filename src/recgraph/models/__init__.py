"""The models of the stages, as the predictors run them."""
