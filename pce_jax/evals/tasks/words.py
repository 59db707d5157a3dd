"""Words for the keys of hidden numbers: RULER's keys are an adjective and a noun, `quiet-harbor`.

Plain words chosen for this library.
"""

_ADJECTIVES = (
    "able agile amber ample ancient annual apt arid ashen basic bitter blank bold brave brief "
    "bright brisk broad bronze busy calm candid careful cheap chilly civic clean clear clever "
    "close cloudy coarse cold copper cosmic cozy crisp curious curly daily dapper dark dear deep "
    "dense direct distant double dry dusty eager early easy empty equal exact faint fair famous "
    "fancy fast fertile fierce final firm first flat fluent foggy fond formal fresh frosty full "
    "gentle giant glad golden grand gray green happy hardy heavy hidden high hollow honest humble "
    "icy ideal idle inner ivory jolly junior just keen kind large late lean light lively local "
    "lofty lone loud loyal lucky major mellow merry mild minor misty modern modest narrow native "
    "neat new nimble noble normal novel oaken odd open orange outer pale patient plain pleasant "
    "polite proud pure purple quick quiet rapid rare ready regular rich ripe rough round royal "
    "rustic safe sandy secret serene sharp shiny short silent silver simple sleek slim slow small "
    "smooth snowy soft solar solid sour spare stable steady steep still stony stout strong sturdy "
    "subtle sudden sunny super sure sweet swift tall tame tender tidy tiny tough tranquil true "
    "upper urban useful vague vast vivid warm wary wide wild windy wise witty wooden woolen young "
    "zesty"
)
_NOUNS = (
    "acorn airport almond anchor ankle apple apron arch arrow atlas autumn badge bakery balcony "
    "banner barley barn basil basket beach beacon bench birch blanket blossom boat bottle bramble "
    "branch brick bridge brook brush bucket button cabin cactus camel camera canal candle canoe "
    "canyon captain carpet castle cedar cellar chalk chapel cherry chimney circle clay cliff clock "
    "cloud clover coast comet compass copper coral cotton cradle crane creek crystal cup curtain "
    "daisy dancer desert diamond dolphin donkey drawer drum eagle easel ember engine falcon farmer "
    "feather fence fern ferry field finch flag flint flute forest fossil fountain fox garden "
    "garlic garnet gate ginger glacier glove goose grain granite grape guitar hammer harbor hazel "
    "hedge helmet heron hill honey horse hotel island ivory jacket jasmine jelly jewel jungle "
    "kettle key kitchen kite ladder lagoon lake lamp lantern laurel leaf lemon letter library "
    "lilac lily linen lion lobster lotus magnet mantle maple marble market marsh meadow melon "
    "mill mirror mitten monkey moon mosaic moss mountain museum nectar needle nest nickel notebook "
    "nutmeg oak oasis oat ocean olive onion orbit orchard orchid otter oven owl paddle palace "
    "panda paper parcel parrot path peach pear pebble pencil pepper piano pillar pine pirate "
    "planet plum pocket pond poppy prairie puzzle quarry quartz quill quiver rabbit raft rain "
    "ribbon ridge river robin rocket rope rose saddle saffron sail salmon sapphire scarf school "
    "shadow shell shore silver sparrow spoon spruce squirrel station statue stone storm stove "
    "summit sunset table teacup temple thistle thunder tiger timber topaz torch tower tractor "
    "trail train tulip tunnel turtle umbrella valley velvet village vine violet violin voyage "
    "wagon walnut walrus water wheat whistle willow window winter wolf yarrow zebra zephyr"
)
ADJECTIVES = tuple(_ADJECTIVES.split())
NOUNS = tuple(_NOUNS.split())
