"""Word lists and random values that the tasks draw from, and which texts are held out.

    rng = dice("seed", "test")
    asked, answer = rng.user(lambda: question(rng))     # drawn again until the text belongs to the test
"""

import random
import re
import zlib
from pathlib import Path

from .synonyms import folded

CLASSES = 32  # one for the test, one for tuning, the rest for training
TRIES = 400
AS_IT_IS = 1000  # characters from which a text is never the same twice
PLAIN = re.compile(r"[^\W_]+")
HAND_MADE = ("paraphrases.tsv", "asked_tools.tsv", "asked_other.tsv")  # questions of tests alone: the first of each line


def plain(text: str) -> str:
    """Without case and marks, and with one word for all that mean the same: "modify it" and "Change it!" are one wording."""
    return " ".join(folded(PLAIN.findall(text.lower())))


class Asked(str):
    """What a user says, of which `core` alone decides where it may be used: a question without "please" and "hello",
    a sum's numbers, a list's items. So no other wording of what is held out is trained."""

    core: str

    def __new__(cls, text: str, core: str):
        asked = super().__new__(cls, text)
        asked.core = core
        return asked


def core_of(text: str) -> str:
    text = getattr(text, "core", text)
    return text if len(text) > AS_IT_IS else plain(text)


def hand_made(name: str) -> list:
    """The lines of a file of questions written one by one, in columns."""
    lines = (Path(__file__).parent / name).read_text().splitlines()
    return [line.replace("\\n", "\n").split("\t") for line in lines if line]


# Words that come and go with a question's form
LITTLE = frozenset("""a an the of to is are do does i me my it can could would tell say want know
please hello hi hey ok so well thanks thank""".split())


def key_of(text: str) -> str:
    """What decides where a text belongs: its words in no order, so that "the default port" and "which port is the default" stay together."""
    if len(text) > AS_IT_IS:
        return text
    found = set(plain(text).split(" "))
    return " ".join(sorted(found - LITTLE or found))


KEPT = frozenset(key_of(row[0]) for name in HAND_MADE for row in hand_made(name))

LONGEST_KEPT = 300  # characters


def part_of_key(key: str) -> str:
    return {0: "test", 1: "dev"}.get(zlib.crc32(f"tessera/{key}".encode()) % CLASSES, "train")


def part_of(text: str) -> str:
    """train, dev or test: where this user turn may be used; "kept" for what is written by hand and never drawn."""
    key = key_of(getattr(text, "core", text))
    if key in KEPT or isinstance(text, Asked) and len(text) <= LONGEST_KEPT and key_of(str(text)) in KEPT:
        return "kept"
    return part_of_key(key)


def half_of(text: str) -> str:
    """dev or test: of questions that are written by hand each is for one of them."""
    return ("dev", "test")[zlib.crc32(f"half/{plain(text)}".encode()) % 2]


class Redraw(Exception):
    """What was drawn so far leaves no user turn of the wanted part."""


class Dice(random.Random):
    """The generator's random numbers: one draw each, which is several times faster than the base class."""

    part = "train"

    def user(self, draw):
        """The first of what `draw` gives whose text (itself, or its first member) belongs to this part."""
        for _ in range(TRIES):
            drawn = draw()
            if part_of(drawn if isinstance(drawn, str) else drawn[0]) == self.part:
                return drawn
        raise Redraw

    def deed(self, draw):
        """The first (verb, noun) of what `draw` gives that belongs to this part: what a function that is made up does."""
        for _ in range(TRIES):
            verb, noun = draw()
            if part_of_key(f"{SAME_DEED.get(verb, verb)} a {noun}") == self.part:
                return verb, noun
        raise Redraw

    def choice(self, seq):
        return seq[int(self.random() * len(seq))]

    def randint(self, a: int, b: int) -> int:
        return a + int(self.random() * (b - a + 1))


def hard_choice(rng: Dice, found: list, hardest: list) -> object:
    """In training often of the hardest, which are few and most of what is missed."""
    return rng.choice(hardest if rng.part == "train" and rng.random() < 0.4 else found)


# One deed in several words: a request may say another than the function. No two groups share a word.
ALIKE = [group.split() for group in ("delete remove erase", "create add make", "show display", "get fetch", "find search", "start launch",
                                     "stop halt", "update change edit", "repair fix", "reserve book", "buy purchase", "close shut",
                                     "extend renew prolong", "assign allocate", "measure gauge", "check verify", "clean wash", "count tally",
                                     "pause suspend", "enable activate", "disable deactivate", "send forward", "approve accept", "reject decline",
                                     "list enumerate", "move shift", "record note", "load import", "test try")]
SAME = {verb: group for group in ALIKE for verb in group}
SAME_DEED = {verb: group[0] for group in ALIKE for verb in group}

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

# Ordinary words of programs and offices: what people call fields, functions and files. Their letters follow other
# rules than made-up words, so that copying is learned for both.
EVERYDAY = """access account action address agent alarm album amount answer api app archive area article artist asset audio author
backup balance bank batch bill block board body branch budget buffer build bus button cache calendar call camera campaign card
cart catalog category cell channel chapter charge chart chat check city class client cluster code column comment commit company
config contact content contract copy cost count country coupon course cover credit currency cursor custom customer daily data
database date day deadline debit default delay delivery demo depth description design desk detail device digit discount distance
document domain door draft driver due duration edge editor email employee end entry error event exam example expense export extra
factor family fax feature fee field file filename filter first flight floor folder font form format frame frequency friend full
game gender genre goal grade graph grid group guest guide header health heat height help history home hotel hour house icon image
import inbox index info input invoice issue item job join journal keyword kind label language last latitude layer length lesson
letter level library license limit line link list loan local location lock log login logo longitude loop machine mail main
manager map market master match max media meeting member memory menu merge message meter method metric min minute mode model
money month movie music name namespace network news next node note notice notify number object offer office online open option
order origin output owner page paper parent part party passenger password path pattern patient payment pet phone photo pin pixel
place plan platform player plugin point policy poll pool port position post power price print priority process product profile
program progress project property proxy public purchase quality quantity query question queue quiz quota quote rank rate rating
reason receipt recipe record refund region reminder remote rent repeat replica reply report request reserve resource response
result retry return review reward road role room root route row rule salary sale sample scale scene schedule school scope score
screen script search season seat second section sector secret seller sender series server service session setting shape sheet
shift shop signal site size skill slot sound source space speaker speed staff stage start state station status step stock stop
storage store stream street string student style subject subscription summary supplier support survey symbol system table tag
target task tax team template term test text theme thread threshold ticket time timeout timer title today token tone tool topic
total tour track traffic train transfer trip type unit update upload url usage user username value vendor version video view visit
voice volume vote wallet warehouse warning watch weather web week weight width window word worker year zip zone""".split()

ONSETS = ["", *"b br c ch cl cr d dr f fl g gl gr h j k kl l m n p pl pr qu r s sc sh sl sp st t th tr v w y z".split()]
VOWELS = "a a e e i i o o u u y ai au ea ee ei ia ie io oa oo ou".split()
CODAS = ["", "", "", "", "l", "m", "n", "r", "s", "t", "ck", "ll", "nd", "ng", "nt", "rd", "rk", "sh", "ss", "st", "x"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
ACCENTS = "äöüéèêëáàâíìîïóòôõúùûñçåøæœłšžßýčřěąęğışțőÄÖÜÉÅØÇŠŽ"
PLACE_HEADS = "New San Los Port Saint Upper East North Lake El".split()


def pseudo_word(rng: random.Random) -> str:
    return "".join(rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS)
                   for _ in range(rng.choice((1, 1, 2, 2, 2, 3))))


def letters(rng: random.Random) -> str:
    """A word that follows no rule, so that every sequence of letters can be copied."""
    word = "".join(rng.choice(LETTERS) for _ in range(rng.randint(3, 8)))
    if rng.random() < 0.15:
        at = rng.randint(1, len(word) - 1)
        word = word[:at] + rng.choice(ACCENTS) + word[at:]
    return word


def compound(rng: random.Random) -> str:
    """Two words, or the head of one and the tail of another: namespace, timeout, custspace."""
    a, b = rng.choice(EVERYDAY), rng.choice(EVERYDAY)
    if rng.random() < 0.4:
        a, b = a[:rng.randint(2, max(2, len(a) - 1))], b[-rng.randint(2, max(2, len(b) - 1)):]
    return a + b


def new_word(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.6:
        return pseudo_word(rng)
    return rng.choice(EVERYDAY) if kind < 0.72 else compound(rng) if kind < 0.84 else letters(rng)


def new_name(rng: random.Random) -> str:
    """A name that no list holds."""
    name = new_word(rng).capitalize()
    return name + new_word(rng).capitalize() if rng.random() < 0.06 else name


def code(rng: random.Random) -> str:
    """An identifier: letters, digits and cases mixed."""
    kind = rng.random()
    if kind < 0.3:
        return new_word(rng) + rng.choice(("", "", "-", "_")) + digits(rng, rng.randint(1, 3))
    if kind < 0.5:
        return "".join(rng.choice(LETTERS) for _ in range(rng.randint(1, 3))).upper() + rng.choice(("", "-")) + digits(rng, rng.randint(2, 5))
    if kind < 0.75:
        return "".join(rng.choice(LETTERS + LETTERS.upper() + "0123456789") for _ in range(rng.randint(4, 8)))
    return new_word(rng) + rng.choice("-_.") + new_word(rng)


SYMBOLS = "!#$%&()*+-/:;<=>?@[]^_`{|}~\\"
SCRIPTS = ["αβγδεζηθικλμνξοπρστυφχψω", "абвгдежзиклмнопрстуфхцчшщыэюя", "あいうえおかきくけこさしすせそたちつてと", "日本中国人山川水火木金土大小上下", "אבגדהוזחטיכלמנסעפצקרשת"]
PRICES = ["${}", "${}", "€{}", "£{}", "{}€", "{}$", "¥{}", "₹{}", "${}.99", "€{}.50", "£{}.25", "US${}", "-${}", "{}%", "{}°", "{}°C", "{}°F",
          "±{}", "#{}", "~{}",
          "{}²", "№{}", "§{}", "^{}", "{}+"]
JOINED = ["{a}&{b}", "{a}^{n}", "~/{a}", "{{{a}}}", "C:\\{a}\\{b}", "{a}\\{b}", "#{a}", "@{a}", "{a}@{b}", "{a}_{b}", "{a}={n}", "{a}+{b}", "{a}*",
          "<{a}>", "[{a}]",
          "({a})", "{a}/{b}", "{a}|{b}", "{a}~{n}", "${a}", "${{{a}}}", "%{a}%", "{a}!", "{a}?{b}", "`{a}`", "{a}:{b}", "{a}::{b}", "{a}->{n}",
          "&{a}", "{a};{b}", "'{a}'",
          "{a}'s", "{a}…", "“{a}”", "{a}–{n}", "{a}×{n}", "{a}™", "{a}\"{b}"]


def accented(rng: random.Random) -> str:
    """With letters that are not English; or of another script."""
    if rng.random() < 0.35:
        script = rng.choice(SCRIPTS)
        return "".join(rng.choice(script) for _ in range(rng.randint(2, 7)))
    word = list(pseudo_word(rng))
    for _ in range(rng.randint(1, 2)):
        word[rng.randrange(len(word))] = rng.choice(ACCENTS)
    return "".join(word).capitalize() if rng.random() < 0.4 else "".join(word)


def odd(rng: random.Random) -> str:
    """What has signs in it, without a space or a comma: a price, a password, a path, letters of other languages."""
    kind = rng.random()
    if kind < 0.3:
        return rng.choice(PRICES).format(rng.randint(1, 99) if rng.random() < 0.5 else rng.randint(1, 9999))
    if kind < 0.55:
        text = "".join(rng.choice(SYMBOLS if rng.random() < 0.3 else LETTERS + LETTERS.upper() + "0123456789") for _ in range(rng.randint(4, 10)))
        return rng.choice(LETTERS) + text + rng.choice("0123456789$%&#")
    return accented(rng) if kind < 0.75 else rng.choice(JOINED).format(a=new_word(rng), b=rng.choice(EVERYDAY), n=rng.randint(2, 99))


def fresh(rng: random.Random) -> str:
    """A string that was most likely never seen before."""
    kind = rng.random()
    return new_word(rng) if kind < 0.5 else new_name(rng) if kind < 0.75 else code(rng)


def city(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.4:
        return rng.choice(CITIES)
    return new_name(rng) if kind < 0.85 else f"{rng.choice(PLACE_HEADS)} {new_name(rng)}"


def person(rng: random.Random) -> str:
    return rng.choice(NAMES) if rng.random() < 0.4 else new_name(rng)


def surname(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.4:
        return rng.choice(SURNAMES)
    return new_name(rng) if kind < 0.9 else rng.choice(("Mc", "O'", "de ", "van ")) + new_name(rng)


def any_word(rng: random.Random) -> str:
    pool = rng.random()
    if pool < 0.22:
        return rng.choice(NOUNS)
    if pool < 0.36:
        return rng.choice(THINGS)
    if pool < 0.48:
        return rng.choice(ADJECTIVES)
    if pool < 0.55:
        return rng.choice(FRUITS)
    return new_word(rng)


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
    host = rng.choice(NOUNS) if rng.random() < 0.4 else new_word(rng)
    return f"{name.lower()}.{pseudo_word(rng)}@{host}.{rng.choice(['com', 'org', 'net', 'de', 'io'])}"


def dice(seed: str, part: str = "train") -> Dice:
    rng = Dice(seed)
    rng.part = part
    return rng
