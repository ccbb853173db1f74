"""Word lists and random values that the tasks draw from."""

import random


class Dice(random.Random):
    """The generator's random numbers: one draw each, which is several times faster than the base class."""

    def choice(self, seq):
        return seq[int(self.random() * len(seq))]

    def randint(self, a: int, b: int) -> int:
        return a + int(self.random() * (b - a + 1))


ADJECTIVES = """amber azure bold brave brisk broad calm clear clever coral cosy crisp dark deep eager
early faint fair fast fierce fine firm fresh gentle glad golden grand green happy hidden honest humble
jolly keen kind large late light little lively long loud lucky mellow merry mild narrow neat noble odd
old pale plain polite prime proud pure quick quiet rapid rare rich ripe rough round royal rustic scarlet
sharp shiny short silent silver simple slim slow small smooth soft solid steady still strong sunny sweet
swift tall tame tidy tiny true vast violet warm wide wild wise young""".split()

NOUNS = """acorn anchor arrow badger basket beacon bell bridge bucket cabin candle canyon castle cedar
circle cliff clock cloud comet copper cradle crane crystal desert donkey dragon drum eagle ember engine
falcon feather fern field flame flute forest fountain fox garden gate glacier hammer harbor hawk hazel
heron hill horn island ivy jacket jungle kettle kite ladder lake lantern leaf lemon lily lion lizard
magnet maple marble meadow mill mirror moon mountain needle nest oak oasis ocean olive orchid otter owl
panther parrot pebble pepper pine planet plum pond prairie quartz rabbit raven reef ribbon river robin
rocket saddle sail salmon shell ship shore sparrow spring star statue stone storm summit sunset swan
temple thistle thunder tiger timber tower trail tulip tunnel turtle valley vine wagon walnut whale
willow window winter wolf wren""".split()

NAMES = """Ada Alma Anton Bela Bruno Carla Cora Dana David Edgar Elena Emil Felix Fiona Greta Hanna Hugo
Ida Igor Ines Ivan Jana Jonas Julia Karl Kira Lars Lena Leo Lina Lucas Mara Marco Mila Nadia Nils Nora
Olga Oscar Paula Pavel Petra Rafael Rita Rosa Samuel Sara Selma Simon Sofia Stefan Tara Theo Tom Vera
Viktor Wanda Xenia Yara Zeno""".split()

SURNAMES = """Abel Baker Berg Blum Brandt Costa Dietz Engel Falk Ferro Gruber Haas Hansen Jansen Keller
Klein Kovacs Lang Lopez Marin Moreau Nagy Novak Olsen Peters Popov Ricci Rossi Sato Silva Stone Vogel
Wagner Weber Winter Wolf Young Ziegler""".split()

CITIES = """Athens Basel Bergen Berlin Bern Boston Bremen Cairo Dublin Geneva Genoa Ghent Graz Hamburg
Helsinki Kyoto Lagos Lima Lisbon London Lyon Madrid Milan Munich Nairobi Naples Osaka Oslo Ottawa Paris
Porto Prague Quito Riga Rome Seoul Seville Sofia Tallinn Tokyo Toronto Turin Utrecht Vienna Vilnius
Warsaw Zagreb Zurich""".split()

FRUITS = """apples apricots bananas berries cherries dates figs grapes kiwis lemons limes mangoes melons
nuts oranges peaches pears plums""".split()

THINGS = """bag ball bike book bottle bowl box brush camera chair coat cup desk drill fan flask fork
glass glove hat jar key knife lamp map mug notebook pan pen pencil phone plate poster radio rope ruler
scarf shelf shirt shoe sofa spoon table tent towel umbrella vase wallet watch whistle""".split()

COLORS = """black blue brown gray green orange pink purple red white yellow""".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
LANGUAGES = "Czech Danish Dutch English Finnish French German Greek Italian Polish Spanish Swedish".split()
ROOMS = "attic bathroom bedroom cellar garage hall kitchen office".split()

ONSETS = "b br c ch d dr f fl g gr h j k kl l m n p pl qu r s sh st t tr v w z".split()
VOWELS = "a e i o u ai ea oo ou".split()
CODAS = ["", "", "l", "m", "n", "r", "s", "t", "nd", "rk", "x"]


def pseudo_word(rng: random.Random) -> str:
    return "".join(rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS)
                   for _ in range(rng.choice((1, 2, 2, 3))))


def any_word(rng: random.Random) -> str:
    pool = rng.random()
    if pool < 0.3:
        return rng.choice(NOUNS)
    if pool < 0.5:
        return rng.choice(THINGS)
    if pool < 0.65:
        return rng.choice(ADJECTIVES)
    if pool < 0.75:
        return rng.choice(FRUITS)
    return pseudo_word(rng)


def distinct(rng: random.Random, count: int, draw) -> list:
    found: list = []
    while len(found) < count:
        item = draw(rng)
        if item not in found:
            found.append(item)
    return found


def digits(rng: random.Random, count: int) -> str:
    return "".join(rng.choice("0123456789") for _ in range(count))


def email(rng: random.Random, name: str) -> str:
    return f"{name.lower()}.{pseudo_word(rng)}@{rng.choice(NOUNS)}.{rng.choice(['com', 'org', 'net'])}"
