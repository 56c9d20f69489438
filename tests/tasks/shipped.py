"""One or more instances of every shipped task, small enough for unit tests."""

from gasweep.tasks import Digits, FashionMnist, NoisyQuadratic, TextLm

INSTANCES = {
    "digits": Digits(hidden=8),
    "digits_all": Digits(layers=0, eval_fraction=0.0),
    "fashion_mnist": FashionMnist(hidden=8, layers=2),
    "fashion_mnist_softmax": FashionMnist(layers=0),
    "text_lm": TextLm(depth=1, width=16, heads=2, context=16),
    "text_lm_masked": TextLm(depth=1, width=16, heads=2, context=16, mask_fraction=0.5),
    "noisy_quadratic": NoisyQuadratic(dimension=10),
    "noisy_quadratic_multiplicative": NoisyQuadratic(dimension=7, noise="multiplicative"),
}
