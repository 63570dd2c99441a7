"""Passages of the built-in set `longtext` about towns, all invented: the text in six paragraphs, then one
question that each paragraph alone answers. Text only; `prompts_longtext.py` cuts and asks.
"""

from __future__ import annotations

TOWNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        """
The night mail of the Orrin valley was a train that almost nobody saw. It left Castle Orrin at ten minutes to midnight
with two sorting vans, a guard's van and no passengers, and it reached the junction at Stell, one hundred and thirty
kilometres away, in time for the first trains south. Between 1889 and 1971 it ran on every night but Christmas Eve. In
those eighty-two years it was late at Stell on only three hundred and four occasions, a record that the railway
printed in gold letters on a board in the booking hall, and changed by hand whenever it grew worse.

Inside the vans eleven clerks stood at a wall of pigeon-holes and sorted letters by the light of oil lamps, later of
electric bulbs fed from the axles. A new clerk learned the valley's four hundred and eighteen addresses by heart and
was examined on them blindfold, with the names called out at random. The best could place sixty letters a minute. They
sorted standing, because the floor lurched at every curve, and the ledge in front of the pigeon-holes was padded with
horsehair where hips struck it. Tea was made on a small stove that was, strictly speaking, forbidden.

The train did not stop at the smaller villages. A leather pouch was hung from a post beside the line, and a net swung
out from the side of the van to catch it at seventy kilometres an hour; at the same moment the clerk pushed out the
pouch for the village, which fell into a second net. The exchange took less than a second and was heard half a mile
away. When it failed, as it did some twenty times a year, letters were scattered along the embankment, and the
children of the village were paid a penny for every five that they brought back.

Only one robbery was ever tried. In the winter of 1923 two brothers from Stell climbed into the guard's van at a
signal that they had turned to red by covering its lamp with a piece of ruby glass. They had heard that the wages of
the quarry were on board. What they found was forty sacks of seed catalogues, since the wages had been sent a day
early on account of a holiday. The guard gave them tea, and they were arrested at the junction with crumbs on their
coats. The piece of ruby glass is in the county museum.

The end came slowly. Lorries took the parcels in 1954, and an air service took the letters for the capital in 1962. By
the last year the train carried fewer than two thousand items a night, and each of them cost four times its postage.
The final run was made on the thirtieth of June 1971 by six clerks, who sorted, by agreement, at half their usual
speed, so that the work should last as far as Stell. They then shook hands with the driver, who had never before seen
any of them, and walked home along the line.

One of the sorting vans survives. It was used as a hen house until 1996, when a retired teacher recognised the
horsehair ledge and bought the van for the price of the hens. Volunteers have restored it with the help of three
former clerks, who corrected the order of the pigeon-holes from memory and agreed on all but two. On summer Sundays
the van is drawn up and down a kilometre of track, and visitors may try the pouch and the net at walking pace. Most of
them miss, and the volunteers keep a bag of old envelopes for the children to collect.
""",
        (
            "How punctual was the train, and how was its record displayed?",
            "What did a new clerk have to learn, and how was it tested?",
            "Explain step by step how mail was exchanged without stopping.",
            "What went wrong for the two brothers?",
            "What made the service uneconomic, and how did the last run go?",
            "How was the surviving van recognised and restored?",
        ),
    ),
    (
        """
When the council of Felsing decided in 2009 to close the municipal ice rink, the building had been losing money for
eleven years and its cooling plant used as much electricity as seven hundred homes. Nobody in the town disputed the
figures. What the council had not expected was that a group of forty skaters, most of them over sixty, would ask to
take the rink over themselves. They called their association the Cold Hands, rented the building for one euro a year,
and promised to run it for five winters without asking the town for anything.

Their first measure was to look for waste. A retired refrigeration engineer among them spent a month with a
thermometer and a notebook and found that a third of the cooling went into air that escaped under the roof. The
members hung a ceiling of silvered cloth above the ice, sewn in a school gymnasium from material meant for
greenhouses. It cost nine thousand euros and cut the electricity bill by thirty-one per cent in the first winter. The
engineer then persuaded the laundry next door to buy the warm water that the compressors had always poured down the
drain.

The second measure was to change the hours. The old rink had opened every day from nine to nine, and on weekday
mornings there were often more attendants than skaters. The Cold Hands opened only when somebody had booked. Schools
took the mornings at a fixed price, an ice hockey club came every evening from as far as Grauburg, and on Friday
nights the lamps were dimmed and an accordion player sat in the middle of the ice on a carpet. By the third winter the
rink was open for fewer hours than before and had twice as many visitors.

Not everything worked. A plan to flood the car park for outdoor skating failed twice, once because of a thaw and once
because a delivery van had been left in the middle of it. A café run by volunteers lost money until it stopped serving
hot meals and kept to soup. In the fourth winter a valve burst and ammonia leaked into the machine room; nobody was
hurt, but the rink stayed closed for five weeks, and the association had to borrow eighty thousand euros from its own
members to replace the pipes.

The town learned from the experiment too. Its energy office copied the silvered ceiling in two swimming pools, where
it worked less well because the moist air left drops on the cloth. The director of the office later admitted that the
council had never measured where the cold went, and had compared its rink only with other rinks that were run in the
same way. Since 2015 every municipal building in Felsing has had what is known as a notebook month, in which someone
with no interest in the outcome writes down what runs, when, and for whom.

The five winters ended in 2014 with a small surplus, and the association renewed its lease for ten more. Its members
are now younger: the average age has fallen from sixty-four to forty-one, and the first chairwoman, who is
eighty-three, skates every Tuesday in a red hat so that the beginners can see her coming. Asked by a newspaper for the
secret, she said that there was none. The rink had always had people who knew how it worked, she said, and people who
decided about it, and the only change was that they had begun to sit in the same room.
""",
        (
            "Why did the council want to close the rink, and who took it over?",
            "Where was energy being wasted, and what was done about it?",
            "How did the opening hours change, and with what result?",
            "Which of the association's plans failed, and why?",
            "What is a notebook month, and how did it come about?",
            "How did the first chairwoman explain the success?",
        ),
    ),
    (
        """
On the plateau of Ansk, where the wind blows for three hundred days of the year, the school bus is a sledge in winter
and a tractor in spring. Only in summer and autumn is it a bus. The district covers an area larger than some countries
and has one hundred and seven pupils between the ages of six and sixteen, who live on fifty-three farms. Until 1994
they boarded in the village during the week. Then the boarding house burned down, on a Sunday, with nobody in it, and
the parents agreed within a month that they did not want it back.

The new arrangement was drawn up by the district's only surveyor, Marit Ek, on the back of a map of reindeer pastures.
She marked every farm with a pin and tied threads between the pins until no child had to travel for longer than ninety
minutes. It took her nine evenings. Her solution had six routes and needed five vehicles, one of which changed its
route at noon. A professor at the technical university later set the same problem to a computer, which found a
solution that was four kilometres shorter but crossed a lake that does not freeze until January.

Drivers are chosen by the parents and keep their posts for life if they wish. They are expected to know how to deliver
a calf, repair a chain, and tell from the colour of the snow whether it will bear a sledge. Each vehicle carries
blankets, a stove, a week's food and a pack of cards. In thirty years the provisions have been needed on four
occasions, the longest of which, in February 2006, lasted for fifty hours. The eleven children who were on that
journey still meet every year and play the game that they invented, whose rules are not explained to outsiders.

The hours on the road are not wasted. Since 1999 the older pupils have been required to teach the younger ones
something on the way, one subject a week, chosen by themselves. Knots, the names of the stars, Portuguese and the care
of horses have all been taught. The inspectors who came from the capital to examine the practice rode on every route
for two weeks. Their report recommended that the lessons be given a curriculum and a form for evaluation. The district
thanked them and has not found the time to design the form.

Money is a yearly quarrel. A seat on the sledge costs the district about six times as much as a seat on a city bus,
and the ministry has twice proposed that the children be taught through a screen at home. The parents' answer is
always the same table of figures, first drawn up by Marit Ek: it shows that three of every four pupils who leave the
school return to the plateau after their training, against one in four in districts that closed their schools. The
ministry has never disputed the table, and it has never replied to it either.

Marit Ek died in 2021. Her map hangs in the corridor of the school, with the threads still in place, although nine of
the farms are now empty and seven new ones have been settled. Each August a class of twelve-year-olds is given new
pins and a ball of thread and told to find the routes for the coming winter. They are allowed to ask the drivers, but
not a computer. The routes that they propose are driven for one week in October, and about every third year one of
them is kept.
""",
        (
            "Why does the district no longer have a boarding house?",
            "How did Marit Ek plan the routes, and how did the computer's solution compare?",
            "What is expected of a driver, and what does each vehicle carry?",
            "What happens during the journeys, and what did the inspectors recommend?",
            "What does the parents' table of figures show?",
            "What do the twelve-year-olds do every August?",
        ),
    ),
    (
        """
Dr. Ilse Brandt's garden of weeds occupies the roof of a parking garage in the middle of Lindhaven. It was laid out in
2001, when the botanical institute had no room for it elsewhere, and it contains nothing that a gardener would plant.
Each of its two hundred and forty beds is a square metre of crushed brick, tar, ash or compacted clay, the kinds of
ground that a city produces. Nothing is sown. What arrives by wind, by bird or in the treads of tyres is allowed to
stay, and every plant is recorded, on the same day of each month, on a card.

The question behind the garden was simple. Textbooks described an orderly succession, in which annual herbs are
followed by grasses, grasses by shrubs and shrubs by trees, and Brandt doubted that it held on ground as poor as this.
After five years the cards agreed with her. On brick the order was often reversed: birches came first, in cracks too
narrow for grass, and herbs followed in the shade of the birches. On ash hardly anything changed after the second
year. Only the clay behaved as the textbooks said, and it did so three times faster.

The most surprising discovery was made by accident. In 2008 a pipe burst and flooded forty of the beds for a week.
When the water had gone, plants came up in them that had never been recorded on the roof, among them a small yellow
crucifer that had been thought extinct in the region since 1931. Its seeds had been lying in the clay, which had been
dug from the site of an old canal. Brandt published the finding under the title A Garden Remembers, and was scolded by
a colleague for the word.

Running costs are low. A technician spends four hours a month on the roof, and the cards are filled in by volunteers,
who are trained for a single afternoon. To find out how far the volunteers can be trusted, Brandt had every tenth bed
recorded twice by people who did not know of each other. In the first year they agreed on seventy-eight plants in a
hundred. After she had replaced the written descriptions on the cards by drawings, they agreed on ninety-three, which
is slightly better than the agreement between two professors whom she tested in the same way.

The owner of the garage has asked on several occasions for the space. It would hold thirty-six cars, worth about
ninety thousand euros a year. In 2016 the city council weighed that sum against a study showing that the roof keeps
the upper deck eleven degrees cooler in July and holds back half of the rain of a thunderstorm. It decided to leave
the garden where it was and to require a planted roof on every new garage. Most of those roofs have been planted with
stonecrop from a single nursery, and they interest Brandt very little.

She retired in 2020 and handed the cards, fifty-one thousand of them, to a student of statistics. He found a pattern
that she had missed for twenty years: beds to the north of a bed with birches were richer in species than beds to the
south of one, on every kind of ground but ash. The reason is still disputed. Shade, falling leaves and birds that rest
on the twigs have all been proposed, and an experiment with artificial birches made of wire was begun last spring.
Brandt comes on recording days to hold the ladder, and declines to say which explanation she prefers.
""",
        (
            "What is grown in the garden, and how is it recorded?",
            "In what ways did the observations depart from the textbooks?",
            "What came up after the flood, and where had it come from?",
            "How reliable were the volunteers, and how did that improve?",
            "Which arguments did the council weigh in 2016?",
            "What pattern did the student find, and which explanations are discussed?",
        ),
    ),
)
