"""Passages of the built-in set `longtext` about crafts, all invented: the text in six paragraphs, then one
question that each paragraph alone answers. Text only; `prompts_longtext.py` cuts and asks.
"""

from __future__ import annotations

CRAFTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        """
The salt works of Marrowby lie on a flat tongue of land between the river Tebble and the sea. For almost four hundred
years the people of the town have let sea water into shallow clay basins at the spring tides, waited for sun and wind
to thicken it, and raked the crust into white cones along the banks. At the height of the trade, around 1840, there
were sixty-two basins and a fleet of flat-bottomed barges that carried the salt upstream. Today nine basins are still
worked, by a cooperative of fourteen families, and the rest have become a reserve for wading birds.

The season begins in April, when the basins are drained and their floors are rolled smooth with a stone cylinder that
weighs nearly half a tonne. Cracks are closed with blue clay from a pit behind the church. A basin that has been
rolled badly loses its brine overnight, and an old saying in the town holds that a lazy April makes a hungry winter.
By the middle of May the sluices are opened for the first time. The water passes through three settling ponds, where
sand and weed sink to the bottom, before it reaches the basins in which the salt will form.

Two kinds of salt are taken. The coarse grey salt, which makes up nine tenths of the harvest, grows on the floor of
the basin and is raked in the afternoon. The fine white salt forms as a skin on still evenings and has to be skimmed
with a long wooden blade before the wind breaks it. A good skimmer can gather thirty kilograms in an evening, but on
perhaps two evenings out of three there is nothing to gather. The fine salt sells for eleven times the price of the
grey, and many families say that it pays for the roof while the grey pays for the bread.

In 1907 a company from the capital bought the eastern basins and built a works with steam-heated pans. It promised to
make in a day what the sun made in a month, and for a while it did. But the coal had to come by barge, the pans rusted
within six years, and the salt that came out of them was so fine that it set hard in damp kitchens. When the company
failed in 1915 the townspeople took the bricks for garden walls. The chimney was left standing because storks had
built a nest on it, and it appears on the label of every packet sold by the cooperative.

The birds are the town's second harvest. Avocets, stilts and dunlins feed in the abandoned basins, and since 1988 a
warden has counted them every week from a wooden tower. The numbers of breeding avocets rose from seven pairs in the
first year to more than three hundred, but they depend on the water level: if the old sluices are left shut the basins
dry out, and if they are left open foxes can wade across at low tide. The warden and the salt workers now share a
single calendar, painted on the wall of the sluice house, so that neither spoils the other's work.

What worries Marrowby is the sea itself. The spring tides reach eighteen centimetres higher than they did when the
oldest worker was a child, and twice in the past decade a storm has broken the outer bank and washed a season's salt
away. Engineers have offered a concrete wall, which would save the basins but cut the birds off from the mud flats. A
second plan would move the bank inland and give up four of the nine basins. At the last town meeting the vote was
tied, and the mayor, who owns a share in one of the basins, declined to cast the deciding vote.
""",
        (
            "How many basins are worked today, and by whom?",
            "How are the basins prepared for the season, and why does it matter?",
            "How do the two kinds of salt differ in how they are gathered and in price?",
            "Why did the steam-heated works fail?",
            "Why do the warden and the salt workers share a calendar?",
            "Set out the two plans against the sea and what each would cost the town.",
        ),
    ),
    (
        """
The Hallam pear was found in 1812 as a seedling in a hedge, bearing eleven fruits in its first summer. Its finder, a
schoolmaster named Josiah Hallam, noticed that the wasps left it alone until November. A fruit picked in October is as
hard as wood and tastes of almost nothing; kept in straw until February it turns yellow, softens from the inside, and
smells faintly of quince. In the years before cold stores this was worth a great deal, because it meant fresh fruit in
the hungriest month. By 1860 the pear was grown in twenty-six parishes.

The tree is not easy to live with. It grows twelve metres tall unless it is grafted on quince, flowers so early that
one frost in three years takes the crop, and will not set fruit unless another kind of pear flowers within sight of
it. Growers solved the last problem by planting a row of perry pears along every hedge. They solved the first by
pruning with saws on long poles, a job given to the youngest, who were roped to the trunk. The frost they could not
solve, though some lit tubs of wet straw and let the smoke lie between the rows.

Storing the fruit was a craft of its own. Each pear was wrapped in a twist of paper, laid on slats so that it touched
no other, and turned once a week. A store with ten thousand pears kept two people busy from October to March. They
worked mostly by nose, because a single rotting pear gives off a sweetness that sets its neighbours ripening, and a
careless week could lose a shelf. The twists of paper were printed with the grower's name, and children collected
them, so that we know today of one hundred and nine growers, though no list was ever kept.

What ended the Hallam was the railway and then the refrigerator. Pears from warmer countries arrived in January
already soft, cheaper and larger, and customers no longer needed a fruit that asked for patience. Orchards were
grubbed up for barley in the 1920s and again, with a government grant, in the 1950s. In 1983 a survey found forty-four
trees, nearly all of them over a century old, and concluded that the variety would be gone within a generation. It
misspelled the name of the pear throughout.

The revival began with a mistake. A nursery that had ordered grafting wood of a Belgian pear was sent Hallam by
accident, sold three hundred young trees under the wrong name, and received an angry letter from nearly every customer
when the fruit would not soften. One of them, a cook, had forgotten a box in her cellar and opened it in March. She
wrote instead to ask for more. Her recipe, in which the pears are baked whole in hay and served with a sharp cheese,
was printed in a Sunday paper, and the nursery sold out for three years.

There are now about five thousand trees, most of them in small orchards that belong to restaurants or to groups of
neighbours. Plant breeders have become interested for another reason: the wasps that spared the first tree were not
mistaken, since the skin of the unripe fruit contains a bitter substance that also keeps off a moth whose caterpillars
ruin other pears. Crossing it into a modern variety will take at least fifteen years. The growers of the Hallam, asked
what they think of that, tend to answer that fifteen years is about how long one of their trees takes to bear
properly.
""",
        (
            "Why was the pear valuable in the nineteenth century?",
            "Which three difficulties does the tree pose, and how did growers meet them?",
            "How were the pears stored, and why did it take so much care?",
            "What caused the decline, and what did the survey of 1983 find?",
            "What was the mistake that began the revival?",
            "Why are plant breeders interested in the pear today?",
        ),
    ),
    (
        """
The glassmakers of the island of Veshna make one thing only, and they make it badly on purpose. Their floats, hollow
balls of green glass as big as a melon, once held up the nets of the whole northern fleet. A perfect float is of no
use: it slides through the knots of its cord. The Veshna float has a flat place, left where the blower rests it on wet
ash, and a thick button of glass that seals the hole, and these two faults give the cord something to hold. In 1930
the island made four hundred thousand of them and sent back none.

The glass was whatever the sea brought. Bottles were gathered from the beaches by weight, broken in a trough, and
melted with sand from a cove on the western side that contains a good deal of iron, hence the colour. A furnace burned
for ten months at a stretch, on driftwood and peat, and was let out only when the floor had to be renewed. Six people
worked around it in a circle: a gatherer, a blower, a presser, a sealer, a carrier, and a child with a wet broom who
kept the sparks off the roof.

Plastic floats arrived in 1958 and took four years to end the trade. They were lighter, they did not break, and they
were sold together with the nets. The youngest of the glassmakers left for the mainland. The others let the furnace
out and used the moulds as flower pots. What remained were the floats themselves, of which several million had been
lost over the decades, and which went on circling the ocean. They came ashore on coasts where nobody had heard of
Veshna, crusted with shells, and people began to put them on windowsills and to wonder where they were from.

It was an oceanographer who gave them their second use. In 1974 Ruth Adeyemi noticed that the button on each float
bore a letter, and learned from a former sealer that the letter had been changed every year. A float with a letter was
therefore a message that said when it had been made and, roughly, where it had been lost. She asked the readers of
fishing magazines to write to her, received nineteen thousand replies, and drew from them the first chart of the
northern gyre to show that it turns in six and a half years rather than in four.

Her chart made the island curious about itself. A cooperative lit a new furnace in 1986, fired with gas, and found
that two of the six places in the circle could still be filled by people who had once stood there. The other four had
to be learned. The first floats cracked while they cooled, because nobody remembered that they had been buried in warm
ash overnight, until a woman who had been the child with the broom remembered carrying the ash. She was seventy-one,
and it had not seemed to her to be the important part.

Most of the floats made today are sold to visitors, but eight hundred a year are given to Adeyemi's successors, who
fill them with a small transmitter and set them adrift. The glass is better than any plastic for this purpose, as it
does not grow brittle in the sun and sheds nothing into the water. The letter on the button is still changed each
year. In the year of Adeyemi's death it was an R, out of order, and the island has decided that it will come round
again only when one of the floats of that year is found.
""",
        (
            "Why is a perfect float of no use?",
            "What was the glass made of, and who worked at the furnace?",
            "What became of the trade and of the lost floats after 1958?",
            "How did the letters on the floats help to chart the ocean?",
            "Why did the first new floats crack, and who found the reason?",
            "What are today's floats used for, and what is special about the letter R?",
        ),
    ),
    (
        """
The clock in the tower of Saint Orsola has only one hand. It was built in 1558 by a locksmith who had never made a
clock before, and it was meant to tell the hours to people who had no use for minutes. The hand is two metres long,
made of beaten iron and gilded at the tip, and it moves over a painted face divided into twenty-four. Because the day
in those times was counted from sunset, the clock had to be set anew every week, and the parish paid a man called the
corrector to climb one hundred and ninety-one steps and do it.

Its works fill a room the size of a stable. The wheels are held not by screws but by wedges, which can be knocked out
with a mallet, so that any part can be removed without disturbing the others. Two stones, each as heavy as a calf,
drive the going train and the striking train and sink eleven metres in thirty hours. The escapement was changed to a
pendulum in 1689, which made the clock about twenty times more accurate and put an end, in the words of the parish
book, to quarrels about the market. Everything else is as the locksmith left it.

In the summer of 1796 soldiers were quartered in the tower, and their captain, irritated by the bell, ordered the
striking train stopped. The corrector of the time, a widow named Agnese Poli who had taken over the post from her
husband, removed one wedge and hid it in her apron. When the captain left in the autumn he demanded that the bell ring
to mark his departure, and could not understand why it would not. The wedge was put back on the following morning. It
is the only part of the clock that has a name, and the name is Agnese.

Clocks with one hand can be read more exactly than most people suppose. The space between two hours on the face is
twenty-six centimetres wide, and a practised eye can tell five minutes from it at a glance. A teacher at the village
school has tested this with her pupils every year since 2003. After a week of practice, nine-year-olds are wrong by
four minutes on average; their parents, who look at their telephones to check, are wrong by nine. She says that the
children do not read the number but the gap, in the way that one reads how full a glass is.

The restoration of 2011 nearly replaced the works by an electric motor. The diocese had received an offer that
included a radio receiver, a guarantee and a discount, and the parish council had already voted for it. What changed
its mind was a calculation by a mechanic from the bus company, who showed that winding the clock by hand had cost less
in four centuries than the motor's service contract would cost in thirty years. He offered to wind it himself, on his
way to the early shift, and he has done so ever since, except for two weeks in 2018 when he broke his ankle.

Visitors may climb the tower on the first Saturday of each month. The room is cold even in July, and the guide asks
them to be silent for a full minute before she says anything, so that they hear the pendulum, which beats once in two
seconds, and the rope creaking on its drum. Some find this too long and look for the time. On the wall beside the door
the correctors have scratched their names, thirty-eight of them, with the year in which each began. The last name is
that of the mechanic, and below it somebody has already drawn a line for the next.
""",
        (
            "Why did the clock need a corrector?",
            "How is the clock driven, and what was changed in 1689?",
            "Tell the story behind the wedge called Agnese in your own words.",
            "What did the teacher find out about reading the clock?",
            "Which argument saved the hand-wound works in 2011?",
            "What happens on a visit to the tower?",
        ),
    ),
)
